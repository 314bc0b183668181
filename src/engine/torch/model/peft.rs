//! Adapters on disk, in the layout of `peft`: adapter_config.json and adapter_model.safetensors.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tch::{Device, Kind, Tensor, no_grad};

use super::lora::{Lora, LoraPair, LoraSpec, Target, parameter_base};
use super::tensor::{Doing, Tensors};
use super::tensor_file::TensorFiles;
use crate::engine::models::{ModelConfig, ModelError, file};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

impl Lora {
    /// Reads an adapter folder and checks every tensor against the model it is for.
    pub fn load(dir: &Path, config: &ModelConfig, device: Device) -> Tensors<Self> {
        let path = dir.join(CONFIG);
        let value = file::read_json(&path)?;
        let mut spec = spec(&value, &path)?;
        let files = TensorFiles::open(&[dir.join(WEIGHTS)])?;
        let mut n_read = 0;
        let mut found = Vec::new();
        let mut layers = Vec::new();
        for i in 0..config.n_layers {
            let mut layer: [Option<LoraPair>; 7] = Default::default();
            for (place, target) in layer.iter_mut().zip(Target::ALL) {
                let base = parameter_base(i, target);
                let (a, b) = (format!("{base}.lora_A.weight"), format!("{base}.lora_B.weight"));
                if !files.has(&a) && !files.has(&b) {
                    continue;
                }
                let (n_out, n_in) = target.shape(config);
                let get = |name: &str, shape: &[usize]| files.get(name, shape, Kind::Float, device);
                *place = Some(LoraPair {
                    a: get(&a, &[spec.rank, n_in])?,
                    b: get(&b, &[n_out, spec.rank])?,
                });
                n_read += 2;
                if !found.contains(&target) {
                    found.push(target);
                }
            }
            layers.push(layer);
        }
        if let Some(stranger) = files.names().find(|name| !is_known(name, config)) {
            return Err(ModelError::unsupported(
                format!("the adapter tensor {stranger}"),
                "adapt only q, k, v, o, gate, up and down projections of the layers this model has",
            ));
        }
        if n_read == 0 {
            return Err(ModelError::malformed(files.path(), "it holds no adapter tensors"));
        }
        found.sort_unstable();
        spec.targets = found;
        Ok(Self { spec, layers })
    }

    /// Writes the folder; `base` names the model it belongs to. The files are durable when this returns.
    pub fn save(&self, dir: &Path, base: &str) -> Tensors<()> {
        fs::create_dir_all(dir).map_err(|e| ModelError::io(dir, e))?;
        let tensors: Vec<(String, Tensor)> = no_grad(|| {
            self.parameters()
                .into_iter()
                .map(|(name, t)| Ok((name, t.f_detach()?.f_to_device(Device::Cpu)?.f_contiguous()?)))
                .collect::<Result<_, tch::TchError>>()
        })
        .doing("reading adapter parameters")?;
        let weights = dir.join(WEIGHTS);
        Tensor::write_safetensors(&tensors, &weights).doing("writing an adapter")?;
        fs::File::open(&weights)
            .and_then(|f| f.sync_all())
            .map_err(|e| ModelError::io(&weights, e))?;
        let path = dir.join(CONFIG);
        let mut text = format!("{:#}", self.config_json(base));
        text.push('\n');
        crate::sys::durable::write(&path, text.as_bytes()).map_err(|e| ModelError::io(&path, e))
    }

    fn config_json(&self, base: &str) -> Value {
        let spec = self.spec();
        let targets: Vec<&str> = spec.targets.iter().map(|t| t.module()).collect();
        json!({
            "alpha_pattern": {}, "auto_mapping": null, "base_model_name_or_path": base, "bias": "none",
            "fan_in_fan_out": false, "inference_mode": true, "init_lora_weights": true, "layers_pattern": null,
            "layers_to_transform": null, "lora_alpha": spec.alpha, "lora_dropout": 0.0, "modules_to_save": null,
            "peft_type": "LORA", "r": spec.rank, "rank_pattern": {}, "revision": null, "target_modules": targets,
            "task_type": "CAUSAL_LM", "use_dora": false, "use_rslora": spec.rank_stabilized,
        })
    }
}

fn spec(value: &Value, path: &Path) -> Tensors<LoraSpec> {
    let wrong = |reason: String| ModelError::malformed(path, reason);
    if value.get("peft_type").and_then(Value::as_str) != Some("LORA") {
        return Err(wrong("peft_type is not LORA".to_owned()));
    }
    let set = |key: &str| match value.get(key) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Object(map)) => !map.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(_) => true,
    };
    let refused = [
        "use_dora",
        "modules_to_save",
        "fan_in_fan_out",
        "rank_pattern",
        "alpha_pattern",
        "lora_bias",
    ];
    if let Some(key) = refused.into_iter().find(|key| set(key)) {
        return Err(ModelError::unsupported(
            format!("an adapter with {key}"),
            "train a plain LoRA adapter of one rank",
        ));
    }
    if value.get("bias").and_then(Value::as_str).is_some_and(|b| b != "none") {
        return Err(ModelError::unsupported(
            "an adapter with trained biases",
            "train it with bias \"none\"",
        ));
    }
    let rank = value
        .get("r")
        .and_then(Value::as_u64)
        .and_then(|r| usize::try_from(r).ok())
        .filter(|r| (1..=1024).contains(r))
        .ok_or_else(|| wrong("r must be a whole number from 1 to 1024".to_owned()))?;
    let alpha = value
        .get("lora_alpha")
        .and_then(Value::as_f64)
        .ok_or_else(|| wrong("lora_alpha must be a number".to_owned()))?;
    Ok(LoraSpec {
        rank,
        alpha,
        rank_stabilized: set("use_rslora"),
        targets: Vec::new(),
    })
}

/// Whether a tensor's name is one that [`Lora::load`] reads.
fn is_known(name: &str, config: &ModelConfig) -> bool {
    let parse = || {
        let rest = name.strip_prefix("base_model.model.model.layers.")?;
        let (layer, rest) = rest.split_once('.')?;
        let mut parts = rest.split('.');
        let (block, module, factor, last) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let target = Target::from_module(module)?;
        let whole = parts.next().is_none() && target.block() == block && last == "weight";
        let layer: usize = layer.parse().ok()?;
        Some(whole && layer < config.n_layers && ["lora_A", "lora_B"].contains(&factor))
    };
    parse().unwrap_or(false)
}
