"""The results of Ni et al., MaC-Cal."""
