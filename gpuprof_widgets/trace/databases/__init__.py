"""Databases of profilers that store CUPTI's records: nvprof and Nsight Systems."""
