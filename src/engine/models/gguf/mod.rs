//! GGUF files become Hugging Face directories: weights dequantised, tokenizer and chat template rebuilt from metadata.

mod convert;
mod dequant;
mod reader;
mod sentencepiece;
mod tokenizer;

pub(crate) use convert::import;
