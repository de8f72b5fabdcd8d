"""Everything that is known before the first image is opened: filelists, labels, layouts, the index, boxes."""
