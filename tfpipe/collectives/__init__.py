"""The collectives that connect ranks, by Horovod, MPI or TensorFlow; `World` is their face."""
