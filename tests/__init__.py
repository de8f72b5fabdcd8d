"""Tests of tfpipe."""
