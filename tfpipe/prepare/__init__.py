"""Work done ahead of training: the index, packed data, copies on local disks."""
