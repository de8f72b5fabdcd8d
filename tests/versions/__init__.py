"""tfpipe with other versions of TensorFlow, each in a virtual environment of its own."""
