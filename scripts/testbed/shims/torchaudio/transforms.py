from absent import absent

MelScale = MelSpectrogram = Resample = absent("torchaudio")
