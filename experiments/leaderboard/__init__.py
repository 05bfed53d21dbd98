"""Every training method and every calibrator under one budget."""
