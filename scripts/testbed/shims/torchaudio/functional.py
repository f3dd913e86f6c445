from absent import absent

resample = absent("torchaudio")
