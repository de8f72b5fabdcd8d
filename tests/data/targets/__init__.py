"""Tests of tfpipe.data.targets."""
