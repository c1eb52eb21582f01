"""Text: tokenisation, the format of tokenised corpora, and the denoising tasks on them."""
