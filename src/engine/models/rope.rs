//! Rotary position embedding: the inverse frequencies of each scaling variant, as `transformers` computes them.

use std::f64::consts::PI;
use std::path::Path;

use serde_json::Value;

use super::config::Keys;
use super::error::ModelError;

/// Base frequencies and how they are scaled for longer contexts.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// The base, `rope_theta`.
    pub theta: f64,
    /// Width that rotates: the whole head.
    pub dim: usize,
    /// The scaling.
    pub scaling: Scaling,
}

/// The scaling variants.
#[derive(Debug, Clone, PartialEq)]
pub enum Scaling {
    /// None.
    Default,
    /// Positions divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// NTK-aware: the base grows once a sequence is longer than `original`.
    Dynamic {
        /// Growth.
        factor: f64,
        /// Positions the model was trained on.
        original: usize,
    },
    /// Llama 3.1: long wavelengths scaled, short ones kept, a ramp between.
    Llama3 {
        /// The divisor of long wavelengths.
        factor: f64,
        /// Lower end of the ramp.
        low: f64,
        /// Upper end of the ramp.
        high: f64,
        /// Positions the model was trained on.
        original: f64,
    },
    /// YaRN (arXiv 2309.00071): interpolation by wavelength and a temperature on attention.
    Yarn {
        /// The divisor.
        factor: f64,
        /// Rotations from which nothing is interpolated.
        beta_fast: f64,
        /// Rotations below which everything is interpolated.
        beta_slow: f64,
        /// Positions the model was trained on.
        original: f64,
        /// Multiplies cos and sin.
        attention_factor: f64,
        /// Round the ramp's ends to whole dimensions.
        truncate: bool,
    },
}

impl Rope {
    pub(super) fn from_config(
        config: &Value,
        path: &Path,
        dim: usize,
        max_positions: usize,
    ) -> Result<Self, ModelError> {
        // transformers 5 writes `rope_parameters` with the base inside; earlier versions write `rope_scaling` beside it.
        let section = ["rope_parameters", "rope_scaling"]
            .iter()
            .find_map(|key| config.get(key).filter(|v| v.is_object()));
        let empty = Value::Null;
        let keys = Keys {
            value: section.unwrap_or(&empty),
            path,
        };
        let top = Keys { value: config, path };
        let theta = match keys.optional_number("rope_theta")? {
            Some(theta) => theta,
            None => top.number("rope_theta", Some(10_000.0))?,
        };
        if theta <= 1.0 {
            return Err(top.wrong(format!("rope_theta {theta} must be greater than 1")));
        }
        let partial = match keys.optional_number("partial_rotary_factor")? {
            Some(partial) => partial,
            None => top.number("partial_rotary_factor", Some(1.0))?,
        };
        if (partial - 1.0).abs() > f64::EPSILON {
            return Err(ModelError::unsupported(
                "a partial_rotary_factor other than 1",
                "serve this model through an upstream engine",
            ));
        }
        let kind = ["rope_type", "type"]
            .iter()
            .find_map(|key| keys.value.get(key).and_then(Value::as_str))
            .unwrap_or("default");
        let scaling = scaling(kind, &keys, &top, max_positions)?;
        Ok(Self { theta, dim, scaling })
    }

    /// What cos and sin are multiplied by.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            Scaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }

    /// Whether the frequencies depend on the length of the sequence.
    pub fn depends_on_length(&self) -> bool {
        matches!(self.scaling, Scaling::Dynamic { .. })
    }

    /// The `dim / 2` inverse frequencies for a sequence of `length` positions.
    pub fn inverse_frequencies(&self, length: usize) -> Vec<f32> {
        let dim = self.dim as f64;
        let base = |theta: f64| -> Vec<f64> {
            (0..self.dim / 2)
                .map(|i| f64::from((1.0 / theta.powf(2.0 * i as f64 / dim)) as f32))
                .collect()
        };
        let plain = base(self.theta);
        let scaled: Vec<f64> = match self.scaling {
            Scaling::Default => plain,
            Scaling::Linear { factor } => plain.iter().map(|f| f / factor).collect(),
            Scaling::Dynamic { factor, original } => {
                let ratio = length.max(original) as f64 / original as f64;
                base(self.theta * (factor * ratio - (factor - 1.0)).powf(dim / (dim - 2.0)))
            }
            Scaling::Llama3 {
                factor,
                low,
                high,
                original,
            } => plain
                .iter()
                .map(|&f| {
                    let wavelength = 2.0 * PI / f;
                    if wavelength < original / high {
                        f
                    } else if wavelength > original / low {
                        f / factor
                    } else {
                        let smooth = (original / wavelength - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                })
                .collect(),
            Scaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                original,
                truncate,
                ..
            } => {
                let dimension =
                    |rotations: f64| dim * (original / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln());
                let (mut from, mut to) = (dimension(beta_fast), dimension(beta_slow));
                if truncate {
                    (from, to) = (from.floor(), to.ceil());
                }
                (from, to) = (from.max(0.0), to.min(dim - 1.0));
                if (to - from).abs() < f64::EPSILON {
                    to += 0.001;
                }
                plain
                    .iter()
                    .enumerate()
                    .map(|(i, &f)| {
                        let ramp = ((i as f64 - from) / (to - from)).clamp(0.0, 1.0);
                        f / factor * ramp + f * (1.0 - ramp)
                    })
                    .collect()
            }
        };
        scaled.into_iter().map(|f| f as f32).collect()
    }
}

fn scaling(kind: &str, keys: &Keys<'_>, top: &Keys<'_>, max_positions: usize) -> Result<Scaling, ModelError> {
    let factor = || {
        let factor = keys.number("factor", None)?;
        if factor < 1.0 {
            return Err(keys.wrong(format!("the rope factor {factor} must be at least 1")));
        }
        Ok(factor)
    };
    let original = match keys.optional_number("original_max_position_embeddings")? {
        Some(original) => original,
        None => top.number("original_max_position_embeddings", Some(max_positions as f64))?,
    };
    if !(1.0..=1e9).contains(&original) {
        return Err(keys.wrong(format!("original_max_position_embeddings {original} is not a length")));
    }
    Ok(match kind {
        "default" => Scaling::Default,
        "linear" => Scaling::Linear { factor: factor()? },
        "dynamic" => Scaling::Dynamic {
            factor: factor()?,
            original: max_positions,
        },
        "llama3" => {
            let (low, high) = (
                keys.number("low_freq_factor", None)?,
                keys.number("high_freq_factor", None)?,
            );
            if !(low > 0.0 && high > low) {
                return Err(keys.wrong(format!("low_freq_factor {low} must be below high_freq_factor {high}")));
            }
            Scaling::Llama3 {
                factor: factor()?,
                low,
                high,
                original,
            }
        }
        "yarn" => {
            let factor = match keys.optional_number("factor")? {
                Some(_) => factor()?,
                None => (max_positions as f64 / original).max(1.0),
            };
            let attention_factor = match keys.optional_number("attention_factor")? {
                Some(given) => given,
                None => yarn_attention_factor(
                    factor,
                    keys.optional_number("mscale")?,
                    keys.optional_number("mscale_all_dim")?,
                ),
            };
            Scaling::Yarn {
                factor,
                beta_fast: keys.number("beta_fast", Some(32.0))?,
                beta_slow: keys.number("beta_slow", Some(1.0))?,
                original,
                attention_factor,
                truncate: keys.flag("truncate", true)?,
            }
        }
        other => {
            return Err(ModelError::unsupported(
                format!("the rope scaling {other:?}"),
                "the embedded engine knows default, linear, dynamic, llama3 and yarn",
            ));
        }
    })
}

fn yarn_attention_factor(factor: f64, mscale: Option<f64>, mscale_all: Option<f64>) -> f64 {
    let scale = |m: f64| {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * m * factor.ln() + 1.0
        }
    };
    match (mscale, mscale_all) {
        (Some(m), Some(all)) if m != 0.0 && all != 0.0 => scale(m) / scale(all),
        _ => scale(1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rope(section: &Value) -> Rope {
        let config = json!({ "rope_theta": 10000.0, "rope_scaling": section });
        Rope::from_config(&config, Path::new("config.json"), 8, 2048).unwrap()
    }

    #[test]
    fn default_frequencies_are_powers_of_the_base() {
        let rope = rope(&Value::Null);
        assert_eq!(rope.inverse_frequencies(1), [1.0, 0.1, 0.01, 0.001]);
    }

    #[test]
    fn linear_divides_and_dynamic_waits_for_length() {
        let linear = rope(&json!({"type": "linear", "factor": 4.0}));
        assert_eq!(linear.inverse_frequencies(1)[0], 0.25);
        let dynamic = rope(&json!({"rope_type": "dynamic", "factor": 2.0}));
        assert_eq!(dynamic.inverse_frequencies(2048)[1], 0.1);
        assert!(dynamic.inverse_frequencies(4096)[1] < 0.1);
    }

    #[test]
    fn llama3_keeps_short_wavelengths_and_divides_long_ones() {
        let rope = rope(
            &json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024}),
        );
        let f = rope.inverse_frequencies(1);
        assert_eq!(f[0], 1.0);
        assert_eq!(f[3], 0.001 / 8.0);
    }

    #[test]
    fn yarn_attention_factor_grows_with_the_logarithm() {
        let rope = rope(&json!({"rope_type": "yarn", "factor": 4.0}));
        assert!((rope.attention_factor() - 1.138_629_436).abs() < 1e-8);
    }

    #[test]
    fn unknown_scaling_is_refused() {
        let config = json!({ "rope_scaling": {"type": "longrope", "factor": 2.0} });
        let error = Rope::from_config(&config, Path::new("c"), 8, 2048).unwrap_err();
        assert!(error.to_string().contains("longrope"), "{error}");
    }
}
