//! Full weights for training, and their way back to a Hugging Face folder.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tch::{Device, Kind, TchError, Tensor, no_grad};

use super::forward::Model;
use super::lora::Target;
use super::tensor::{Doing, Tensors, size};
use super::weights::{HeadNorms, LayerWeights, Linear, Weights};
use crate::engine::models::{ModelConfig, ModelError, file};

const CONFIG: &str = "config.json";
/// What a folder holds besides config and weights.
const COMPANIONS: [&str; 5] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
];

/// A configuration that names the type its weights now have; loaders that follow it would otherwise round them back.
fn with_dtype(mut config: Value, kind: Kind) -> Result<Value, String> {
    let name = match kind {
        Kind::Float => "float32",
        Kind::BFloat16 => "bfloat16",
        Kind::Half => "float16",
        other => return Err(format!("weights of type {other:?} have no name in it")),
    };
    let fields = config.as_object_mut().ok_or("it is not an object")?;
    // The newer spelling where the file has it, else the one that every version reads.
    let key = if fields.contains_key("dtype") {
        "dtype"
    } else {
        "torch_dtype"
    };
    fields.insert(key.to_owned(), name.into());
    Ok(config)
}

impl Model {
    /// An independent copy in `kind` whose every weight takes gradients. For [`Model::forward_train`]; to serve the
    /// result, save it and load it again.
    pub fn trainable(&self, kind: Kind) -> Tensors<Self> {
        let copy = |t: &Tensor| -> Result<Tensor, TchError> {
            let new = t.f_empty_like()?.f_to_kind(kind)?;
            no_grad(|| new.shallow_clone().f_copy_(t))?;
            new.f_set_requires_grad(true)
        };
        let weights = || {
            let embedding = copy(&self.weights.embedding)?;
            let head = if self.config.tied_embeddings {
                Linear {
                    weight: embedding.shallow_clone(),
                    bias: None,
                }
            } else {
                self.weights.head.map(copy)?
            };
            Ok(Weights {
                embedding,
                layers: self
                    .weights
                    .layers
                    .iter()
                    .map(|l| l.map(copy))
                    .collect::<Result<_, _>>()?,
                norm: copy(&self.weights.norm)?,
                head,
            })
        };
        Self::new(self.config.clone(), weights().doing("copying weights for training")?)
    }

    /// Name and tensor of every weight, tied ones once. The tensors share storage with the model. Projections that are
    /// computed together are one tensor here (`layers.0.qkv.weight`), which changes nothing for an optimizer that
    /// treats elements alike.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let mut out = vec![("embedding".to_owned(), self.weights.embedding.shallow_clone())];
        for (i, layer) in self.weights.layers.iter().enumerate() {
            for (part, tensor) in layer.parts() {
                out.push((format!("layers.{i}.{part}"), tensor.shallow_clone()));
            }
        }
        out.push(("norm".to_owned(), self.weights.norm.shallow_clone()));
        if !self.config.tied_embeddings {
            out.push(("head".to_owned(), self.weights.head.weight.shallow_clone()));
        }
        out
    }

    /// Writes a folder that loads anywhere: weights under their Hugging Face names in `kind`, the config of `base` with
    /// that type in it, and tokenizer and templates as they are there. The files are durable when this returns.
    pub fn save(&self, dir: &Path, base: &Path, kind: Kind) -> Tensors<()> {
        fs::create_dir_all(dir).map_err(|e| ModelError::io(dir, e))?;
        let tensors = no_grad(|| self.named(kind)).doing("collecting weights")?;
        let weights = dir.join("model.safetensors");
        Tensor::write_safetensors(&tensors, &weights).doing("writing weights")?;
        sync(&weights)?;
        let present = COMPANIONS.into_iter().filter(|name| base.join(name).is_file());
        let path = base.join(CONFIG);
        let config =
            with_dtype(file::read_json(&path)?, kind).map_err(|reason| ModelError::malformed(&path, reason))?;
        let to = dir.join(CONFIG);
        crate::sys::durable::write(&to, format!("{config:#}\n").as_bytes()).map_err(|e| ModelError::io(&to, e))?;
        for name in present {
            let to = dir.join(name);
            fs::copy(base.join(name), &to).map_err(|e| ModelError::io(base.join(name), e))?;
            sync(&to)?;
        }
        crate::sys::durable::sync_dir(dir).map_err(|e| ModelError::io(dir, e))
    }

    fn named(&self, kind: Kind) -> Result<Vec<(String, Tensor)>, TchError> {
        let (c, w) = (&self.config, &self.weights);
        let mut out = Vec::new();
        let mut add = |name: String, t: &Tensor| -> Result<(), TchError> {
            let t = t
                .f_detach()?
                .f_to_kind(kind)?
                .f_to_device(Device::Cpu)?
                .f_contiguous()?;
            out.push((name, t));
            Ok(())
        };
        add("model.embed_tokens.weight".to_owned(), &w.embedding)?;
        for (i, layer) in w.layers.iter().enumerate() {
            let base = format!("model.layers.{i}");
            add(format!("{base}.input_layernorm.weight"), &layer.input_norm)?;
            add(format!("{base}.post_attention_layernorm.weight"), &layer.mlp_norm)?;
            if let Some(norms) = &layer.qk_norm {
                add(format!("{base}.self_attn.q_norm.weight"), &norms.q)?;
                add(format!("{base}.self_attn.k_norm.weight"), &norms.k)?;
            }
            for (linear, targets) in layer.projections() {
                let mut from = 0;
                for target in targets {
                    let name = format!("{base}.{}.{}", target.block(), target.module());
                    let rows = size(target.shape(c).0);
                    add(format!("{name}.weight"), &linear.weight.f_narrow(0, from, rows)?)?;
                    if let Some(bias) = &linear.bias {
                        add(format!("{name}.bias"), &bias.f_narrow(0, from, rows)?)?;
                    }
                    from += rows;
                }
            }
        }
        add("model.norm.weight".to_owned(), &w.norm)?;
        if !c.tied_embeddings {
            add("lm_head.weight".to_owned(), &w.head.weight)?;
        }
        Ok(out)
    }
}

impl LayerWeights {
    /// The fused projections and what they are made of.
    fn projections(&self) -> [(&Linear, &'static [Target]); 4] {
        [
            (&self.qkv, &[Target::Q, Target::K, Target::V]),
            (&self.output, &[Target::O]),
            (&self.gate_up, &[Target::Gate, Target::Up]),
            (&self.down, &[Target::Down]),
        ]
    }

    fn parts(&self) -> Vec<(String, &Tensor)> {
        let mut out = vec![("input_norm".to_owned(), &self.input_norm)];
        let names = ["qkv", "output", "gate_up", "down"];
        for (name, (linear, _)) in names.into_iter().zip(self.projections()) {
            out.push((format!("{name}.weight"), &linear.weight));
            out.extend(linear.bias.as_ref().map(|b| (format!("{name}.bias"), b)));
        }
        if let Some(norms) = &self.qk_norm {
            out.push(("q_norm".to_owned(), &norms.q));
            out.push(("k_norm".to_owned(), &norms.k));
        }
        out.push(("mlp_norm".to_owned(), &self.mlp_norm));
        out
    }

    fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor, TchError> + Copy) -> Result<Self, TchError> {
        Ok(Self {
            input_norm: f(&self.input_norm)?,
            qkv: self.qkv.map(f)?,
            qk_norm: match &self.qk_norm {
                Some(norms) => Some(HeadNorms {
                    q: f(&norms.q)?,
                    k: f(&norms.k)?,
                }),
                None => None,
            },
            output: self.output.map(f)?,
            mlp_norm: f(&self.mlp_norm)?,
            gate_up: self.gate_up.map(f)?,
            down: self.down.map(f)?,
        })
    }
}

impl Linear {
    fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor, TchError>) -> Result<Self, TchError> {
        Ok(Self {
            weight: f(&self.weight)?,
            bias: self.bias.as_ref().map(&f).transpose()?,
        })
    }
}

fn sync(path: &Path) -> Tensors<()> {
    fs::File::open(path)
        .and_then(|f| f.sync_all())
        .map_err(|e| ModelError::io(path, e))
}

/// Bytes that [`Model::trainable`] needs in all: weights, gradients and the two moments of Adam, in f32.
pub fn full_training_bytes(config: &ModelConfig) -> u64 {
    config.n_parameters() * 16
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_saved_config_names_the_type_of_its_weights() {
        let named = |config, kind| with_dtype(config, kind).unwrap();
        assert_eq!(
            named(json!({"torch_dtype": "bfloat16", "x": 1}), Kind::Float),
            json!({"torch_dtype": "float32", "x": 1})
        );
        assert_eq!(
            named(json!({"dtype": "float32"}), Kind::BFloat16),
            json!({"dtype": "bfloat16"})
        );
        assert_eq!(named(json!({}), Kind::Half), json!({"torch_dtype": "float16"}));
        assert!(with_dtype(json!([]), Kind::Float).is_err());
        assert!(with_dtype(json!({}), Kind::Int8).is_err());
    }
}
