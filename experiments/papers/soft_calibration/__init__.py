"""The results of Karandikar et al. 2021, Soft Calibration Objectives for Neural Networks."""
