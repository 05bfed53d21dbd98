"""What programs need of the machine: errors that users read, files, memory, the compilation cache, versions."""
