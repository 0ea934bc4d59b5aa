"""Calibrated test-time adaptation for vision-language models."""
