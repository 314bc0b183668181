//! GGUF tensor encodings and their decoding to f32. Block layouts as ggml defines them.

use half::{bf16, f16};

/// How a tensor's values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

impl Encoding {
    pub(crate) fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            _ => return None,
        })
    }

    /// Values per block.
    pub(crate) fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Bytes of `n` values; `None` on overflow.
    pub(crate) fn n_bytes(self, n: usize) -> Option<usize> {
        n.div_ceil(self.block_len()).checked_mul(self.block_bytes())
    }

    /// Decodes `n` values; `bytes` has [`Self::n_bytes`] of them.
    pub(crate) fn decode(self, bytes: &[u8], n: usize) -> Vec<f32> {
        let mut out = vec![0.0; n];
        let blocks = bytes.chunks_exact(self.block_bytes());
        for (block, out) in blocks.zip(out.chunks_exact_mut(self.block_len())) {
            match self {
                Self::F32 => out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
                Self::F16 => out[0] = half(block, 0),
                Self::Bf16 => out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32(),
                Self::Q4_0 => nibbles(out, half(block, 0), -8.0 * half(block, 0), &block[2..]),
                Self::Q4_1 => nibbles(out, half(block, 0), half(block, 2), &block[4..]),
                Self::Q5_0 => five_bits(out, half(block, 0), -16.0 * half(block, 0), &block[2..]),
                Self::Q5_1 => five_bits(out, half(block, 0), half(block, 2), &block[4..]),
                Self::Q8_0 => {
                    let d = half(block, 0);
                    for (o, &q) in out.iter_mut().zip(&block[2..]) {
                        *o = d * f32::from(q as i8);
                    }
                }
                Self::Q4K => k_nibbles(out, block, &[], &block[16..]),
                Self::Q5K => k_nibbles(out, block, &block[16..48], &block[48..]),
                Self::Q6K => six_bits(out, block),
            }
        }
        out
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// 32 values of 4 bits: low nibbles are the first half, high nibbles the second.
fn nibbles(out: &mut [f32], d: f32, m: f32, quants: &[u8]) {
    for (j, &q) in quants[..16].iter().enumerate() {
        out[j] = d * f32::from(q & 0xf) + m;
        out[j + 16] = d * f32::from(q >> 4) + m;
    }
}

/// As [`nibbles`], with a fifth bit per value in a leading word.
fn five_bits(out: &mut [f32], d: f32, m: f32, rest: &[u8]) {
    let high = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
    for (j, &q) in rest[4..20].iter().enumerate() {
        let low_bit = ((high >> j) & 1) as u8;
        let high_bit = ((high >> (j + 16)) & 1) as u8;
        out[j] = d * f32::from((q & 0xf) | (low_bit << 4)) + m;
        out[j + 16] = d * f32::from((q >> 4) | (high_bit << 4)) + m;
    }
}

/// Q4_K and Q5_K: 8 sub-blocks of 32 with 6-bit scales and minima; `high` holds the fifth bits of Q5_K.
fn k_nibbles(out: &mut [f32], block: &[u8], high: &[u8], quants: &[u8]) {
    let (d, dmin, packed) = (half(block, 0), half(block, 2), &block[4..16]);
    for pair in 0..4 {
        let (scale_low, min_low) = six_bit_scale(packed, 2 * pair);
        let (scale_high, min_high) = six_bit_scale(packed, 2 * pair + 1);
        for l in 0..32 {
            let q = quants[32 * pair + l];
            let fifth = |bit: usize| high.get(l).map_or(0, |h| ((h >> bit) & 1) << 4);
            out[64 * pair + l] = d * scale_low * f32::from((q & 0xf) | fifth(2 * pair)) - dmin * min_low;
            out[64 * pair + 32 + l] = d * scale_high * f32::from((q >> 4) | fifth(2 * pair + 1)) - dmin * min_high;
        }
    }
}

fn six_bit_scale(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (
            (packed[j + 4] & 0xf) | ((packed[j - 4] >> 6) << 4),
            (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4),
        )
    };
    (scale.into(), min.into())
}

fn six_bits(out: &mut [f32], block: &[u8]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half(block, 208);
    for n in 0..2 {
        let (low, high, scales) = (&low[64 * n..], &high[32 * n..], &scales[8 * n..]);
        for l in 0..32 {
            let parts = [
                (low[l] & 0xf) | ((high[l] & 3) << 4),
                (low[l + 32] & 0xf) | (((high[l] >> 2) & 3) << 4),
                (low[l] >> 4) | (((high[l] >> 4) & 3) << 4),
                (low[l + 32] >> 4) | (((high[l] >> 6) & 3) << 4),
            ];
            for (k, part) in parts.into_iter().enumerate() {
                let scale = f32::from(scales[l / 16 + 2 * k] as i8);
                out[128 * n + 32 * k + l] = d * scale * (f32::from(part) - 32.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_encoding_decodes_as_the_gguf_package_does() {
        let golden: Value = serde_json::from_str(include_str!("../../../../tests/fixtures/gguf/blocks.json")).unwrap();
        let golden = golden.as_object().unwrap();
        assert_eq!(golden.len(), 10);
        for (id, case) in golden {
            let encoding = Encoding::from_id(id.parse().unwrap()).unwrap();
            let bytes = hex::decode(case["bytes"].as_str().unwrap()).unwrap();
            let expected: Vec<f64> = case["values"]
                .as_array()
                .unwrap()
                .iter()
                .map(|v| v.as_f64().unwrap())
                .collect();
            assert_eq!(encoding.n_bytes(expected.len()), Some(bytes.len()), "{encoding:?}");
            for (i, (found, wanted)) in encoding
                .decode(&bytes, expected.len())
                .iter()
                .zip(&expected)
                .enumerate()
            {
                let off = (f64::from(*found) - wanted).abs();
                assert!(
                    off <= 1e-6 * wanted.abs().max(1.0),
                    "{encoding:?}[{i}]: {found} is not {wanted}"
                );
            }
        }
    }
}
