//! AdamW with its state in our hands.

use std::path::Path;

use tch::{Kind, Tensor, no_grad};

use super::OptimizerSettings;
use crate::train::error::Doing;
use crate::train::{TrainError, tensors};

/// What an update did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Update {
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// The learning rate used.
    pub learning_rate: f64,
    /// False when the gradient was not finite: nothing was changed, not even the step count.
    pub applied: bool,
}

/// AdamW over named parameters:
/// `p ← p (1 − lr·wd)`, `m ← β₁m + (1−β₁)g`, `v ← β₂v + (1−β₂)g²`,
/// `p ← p − lr/(1−β₁ᵗ) · m / (sqrt(v)/sqrt(1−β₂ᵗ) + ε)`.
pub struct AdamW {
    settings: OptimizerSettings,
    steps: u64,
    slots: Vec<Slot>,
}

struct Slot {
    name: String,
    parameter: Tensor,
    first: Tensor,
    second: Tensor,
}

const FORMAT: &str = "reef-adamw-1";

impl AdamW {
    /// Fresh moments for these parameters, which stay shared with the model.
    pub fn new(settings: OptimizerSettings, parameters: &[(String, Tensor)]) -> Result<Self, TrainError> {
        settings.check()?;
        let slots = parameters
            .iter()
            .map(|(name, parameter)| {
                Ok(Slot {
                    name: name.clone(),
                    parameter: parameter.shallow_clone(),
                    first: no_grad(|| parameter.f_zeros_like())?,
                    second: no_grad(|| parameter.f_zeros_like())?,
                })
            })
            .collect::<Result<_, tch::TchError>>()
            .doing("making optimizer state")?;
        Ok(Self {
            settings,
            steps: 0,
            slots,
        })
    }

    /// Updates made so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// One update from the gradients that lie on the parameters, which are cleared. A gradient that is not finite
    /// changes nothing.
    pub fn step(&mut self) -> Result<Update, TrainError> {
        no_grad(|| self.step_inner()).doing("updating parameters")
    }

    fn step_inner(&mut self) -> Result<Update, tch::TchError> {
        let mut gradients = Vec::with_capacity(self.slots.len());
        for slot in &self.slots {
            let gradient = slot.parameter.f_grad()?;
            gradients.push(if gradient.defined() {
                gradient.f_to_kind(slot.parameter.kind())?
            } else {
                slot.parameter.f_zeros_like()?
            });
        }
        let learning_rate = self.settings.learning_rate * self.settings.schedule.factor(self.steps);
        let grad_norm = clip_by_global_norm(&mut gradients, self.settings.max_grad_norm)?;
        let applied = grad_norm.is_finite();
        if applied {
            self.steps += 1;
            self.apply(&gradients, learning_rate)?;
        }
        for slot in &mut self.slots {
            slot.parameter.zero_grad();
        }
        Ok(Update {
            grad_norm,
            learning_rate,
            applied,
        })
    }

    fn apply(&mut self, gradients: &[Tensor], learning_rate: f64) -> Result<(), tch::TchError> {
        let OptimizerSettings {
            beta1,
            beta2,
            epsilon,
            weight_decay,
            ..
        } = self.settings;
        let t = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let step_size = learning_rate / (1.0 - beta1.powi(t));
        let second_scale = (1.0 - beta2.powi(t)).sqrt();
        for (slot, gradient) in self.slots.iter_mut().zip(gradients) {
            if weight_decay != 0.0 {
                let _decayed = slot.parameter.f_mul_scalar_(1.0 - learning_rate * weight_decay)?;
            }
            let _first = slot.first.f_lerp_(gradient, 1.0 - beta1)?;
            let scaled = gradient.f_mul_scalar(1.0 - beta2)?;
            let _second = slot.second.f_mul_scalar_(beta2)?.f_addcmul_(gradient, &scaled)?;
            let mut denominator = slot.second.f_sqrt()?;
            let denominator = denominator.f_div_scalar_(second_scale)?.f_add_scalar_(epsilon)?;
            let direction = slot.first.f_mul_scalar(-step_size)?;
            let _moved = slot.parameter.f_addcdiv_(&direction, &denominator)?;
        }
        Ok(())
    }

    /// Writes the moments and the step count as one safetensors file.
    pub fn save(&self, path: &Path) -> Result<(), TrainError> {
        let mut named = Vec::with_capacity(2 * self.slots.len());
        for slot in &self.slots {
            named.push((format!("{}.exp_avg", slot.name), slot.first.shallow_clone()));
            named.push((format!("{}.exp_avg_sq", slot.name), slot.second.shallow_clone()));
        }
        let metadata = [("format", FORMAT.to_owned()), ("steps", self.steps.to_string())];
        tensors::write(path, &named, &metadata)
    }

    /// Takes over the state that [`AdamW::save`] wrote for the same parameters, bit for bit.
    pub fn restore(&mut self, path: &Path) -> Result<(), TrainError> {
        let bad = |fault: String| TrainError::checkpoint(path, "restoring optimizer state", fault);
        let mut file = tensors::read(path)?;
        if file.metadata.get("format").map(String::as_str) != Some(FORMAT) {
            return Err(bad(format!("it is not of format {FORMAT}")));
        }
        let steps = file
            .metadata
            .get("steps")
            .and_then(|s| s.parse::<u64>().ok())
            .ok_or_else(|| bad("it holds no step count".to_owned()))?;
        let mut restored = Vec::with_capacity(self.slots.len());
        for slot in &self.slots {
            let mut take = |suffix: &str| {
                let name = format!("{}.{suffix}", slot.name);
                let tensor = file
                    .tensors
                    .remove(&name)
                    .ok_or_else(|| bad(format!("tensor {name} is missing")))?;
                if tensor.size() != slot.parameter.size() || tensor.kind() != slot.first.kind() {
                    return Err(bad(format!(
                        "tensor {name} has another shape or type than its parameter"
                    )));
                }
                tensor
                    .f_to_device(slot.parameter.device())
                    .doing("moving optimizer state")
            };
            restored.push((take("exp_avg")?, take("exp_avg_sq")?));
        }
        if let Some(extra) = file.tensors.keys().next() {
            return Err(bad(format!("tensor {extra} belongs to no parameter")));
        }
        for (slot, (first, second)) in self.slots.iter_mut().zip(restored) {
            slot.first = first;
            slot.second = second;
        }
        self.steps = steps;
        Ok(())
    }
}

/// √Σ‖g‖² over all gradients, accumulated in f64.
pub fn global_norm(gradients: &[Tensor]) -> Result<f64, tch::TchError> {
    let mut total = 0.0;
    for gradient in gradients {
        // A norm in the gradient's own kind could overflow where the sum of squares in f64 does not.
        let norm = f64::try_from(gradient.f_norm_scalaropt_dtype(2.0, Kind::Double)?)?;
        total += norm * norm;
    }
    Ok(total.sqrt())
}

/// Scales all gradients so that their global norm is at most `max` (0: leaves them), and returns the norm before.
/// The factor is `min(1, max / (norm + 1e-6))`.
pub fn clip_by_global_norm(gradients: &mut [Tensor], max: f64) -> Result<f64, tch::TchError> {
    let norm = global_norm(gradients)?;
    let factor = max / (norm + 1e-6);
    if max > 0.0 && norm.is_finite() && factor < 1.0 {
        for gradient in gradients {
            *gradient = gradient.f_mul_scalar(factor)?;
        }
    }
    Ok(norm)
}
