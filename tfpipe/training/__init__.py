"""Training with Keras, on one process or on MPI ranks with Horovod."""
