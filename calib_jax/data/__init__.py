"""Where examples come from, their splits, and augmentation on device."""
