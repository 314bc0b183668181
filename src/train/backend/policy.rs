//! The network that learns: the embedded model with an adapter, or with all its weights. Knows how to run forward with
//! and without a trace, and how to send a gradient back, recomputing activations where memory asks for it.

use std::path::Path;

use tch::{Kind, TchError, Tensor, no_grad};

use super::head::Projection;
use crate::engine::torch::model::{Lora, LoraSpec, Model, Target, TrainContext};
use crate::train::error::Doing;
use crate::train::{Method, TrainError};

/// Which weights a pass uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weights {
    /// Those that learn.
    Current,
    /// The frozen base, without the adapter.
    Base,
}

/// What runs through the network, and which of its positions are read.
pub(super) struct Input {
    /// Token ids `[rows, width]`, padded on the right; with a shared prefix `[1, prefix and branches]`.
    pub(super) tokens: Tensor,
    /// The positions to read in the flattened tokens, `[n]`.
    pub(super) index: Tensor,
    /// Tokens that all rows begin with; 0 where each row stands for itself.
    pub(super) prefix: usize,
    /// What each row adds to the prefix.
    pub(super) branches: Vec<usize>,
}

/// The network that learns.
pub(super) struct Policy {
    model: Model,
    adapter: Option<Lora>,
}

impl Projection for Policy {
    fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        self.model.head_logits(hidden)
    }

    fn backward(&self, hidden: &Tensor, gradient: &Tensor) -> Result<Tensor, TchError> {
        self.model.head_backward(hidden, gradient)
    }
}

fn model_error(doing: &'static str) -> impl Fn(crate::engine::models::ModelError) -> TrainError {
    move |e| TrainError::Model {
        doing,
        source: Box::new(e),
    }
}

impl Policy {
    /// The policy of a method, continued from the incumbent's files if there are any. `model` must be the base for an
    /// adapter, and the incumbent (or base) itself for full fine-tuning.
    pub(super) fn new(model: Model, method: &Method, parent: Option<&Path>) -> Result<Self, TrainError> {
        let adapter = match method {
            Method::Full => {
                model.set_trainable().map_err(model_error("marking weights"))?;
                None
            }
            Method::Lora {
                rank,
                alpha,
                targets,
                seed,
            } => {
                let spec = spec(*rank, *alpha, targets)?;
                let mut lora = match parent {
                    Some(dir) => Lora::load(dir, model.config(), model.device())
                        .map_err(model_error("loading the incumbent's adapter"))?,
                    None => Lora::init(model.config(), spec.clone(), *seed, model.device())
                        .map_err(model_error("making an adapter"))?,
                };
                let same =
                    |a: &LoraSpec, b: &LoraSpec| a.rank == b.rank && a.alpha == b.alpha && a.targets == b.targets;
                if !same(lora.spec(), &spec) {
                    return Err(TrainError::settings(
                        "the incumbent's adapter has another rank, alpha or set of targets than training.method; \
                         set them as they were, or start a new scenario",
                    ));
                }
                lora.set_trainable(true).map_err(model_error("marking the adapter"))?;
                Some(lora)
            }
        };
        Ok(Self { model, adapter })
    }

    /// The parameters that learn.
    pub(super) fn parameters(&self) -> Vec<(String, Tensor)> {
        match &self.adapter {
            Some(lora) => lora.parameters(),
            None => self.model.parameters(),
        }
    }

    /// The adapter alone.
    #[cfg(test)]
    pub(super) fn into_adapter(self) -> Option<Lora> {
        self.adapter
    }

    /// The model below.
    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    /// Writes the artifact: an adapter folder, or a whole model folder beside the base's other files.
    pub(super) fn save(&self, dir: &Path, base: &Path, base_name: &str) -> Result<(), TrainError> {
        match &self.adapter {
            Some(lora) => lora.save(dir, base_name).map_err(model_error("writing the adapter")),
            None => self
                .model
                .save(dir, base, Kind::Float)
                .map_err(model_error("writing the weights")),
        }
    }

    fn adapter(&self, weights: Weights) -> Option<&Lora> {
        match weights {
            Weights::Current => self.adapter.as_ref(),
            Weights::Base => None,
        }
    }

    fn context(&self, input: &Input) -> Result<TrainContext, TrainError> {
        let context = if input.prefix == 0 {
            self.model.train_context(&input.tokens, None)
        } else {
            self.model.branched_context(input.prefix, &input.branches)
        };
        context.map_err(model_error("running the model"))
    }

    /// Normalised hidden states at the positions to read, `[n, hidden]`, without a trace.
    pub(super) fn hidden(&self, input: &Input, weights: Weights) -> Result<Tensor, TrainError> {
        no_grad(|| {
            let context = self.context(input)?;
            let hidden = self
                .model
                .hidden_in(&input.tokens, &context, self.adapter(weights))
                .map_err(model_error("running the model"))?;
            select(&hidden, &input.index).doing("selecting positions")
        })
    }

    /// Runs forward, asks `loss` for the gradient of the hidden states that are read, and sends it back to the parameters.
    pub(super) fn forward_backward(
        &self,
        input: &Input,
        recompute: bool,
        loss: impl FnOnce(&Tensor) -> Result<Tensor, TrainError>,
    ) -> Result<(), TrainError> {
        if recompute {
            return self.recomputed(input, loss);
        }
        let context = self.context(input)?;
        let hidden = self
            .model
            .hidden_in(&input.tokens, &context, self.adapter.as_ref())
            .map_err(model_error("running the model"))?;
        let chosen = select(&hidden, &input.index).doing("selecting positions")?;
        let gradient = loss(&chosen.detach())?;
        send_back(&chosen, &gradient).doing("computing gradients")
    }

    /// As [`Policy::forward_backward`], holding one layer's activations at a time.
    fn recomputed(
        &self,
        input: &Input,
        loss: impl FnOnce(&Tensor) -> Result<Tensor, TrainError>,
    ) -> Result<(), TrainError> {
        let (model, adapter, tokens) = (&self.model, self.adapter.as_ref(), &input.tokens);
        let run = model_error("running the model");
        let context = no_grad(|| self.context(input))?;
        let n_layers = model.config().n_layers;
        let inputs = no_grad(|| {
            let mut inputs = vec![model.embed_train(tokens)?];
            for layer in 0..n_layers {
                let next = model.layer_train(layer, &inputs[layer], &context, adapter)?;
                inputs.push(next);
            }
            Ok(inputs)
        })
        .map_err(&run)?;
        let mut inputs = inputs;
        let leaf = |t: &Tensor| t.f_detach()?.f_set_requires_grad(true);
        let gradient_of = |leaf: &Tensor| leaf.f_grad();
        let top = inputs
            .pop()
            .ok_or_else(|| TrainError::settings("a model without layers"))?;
        let top = leaf(&top).doing("computing gradients")?;
        let normed = model.norm_train(&top).map_err(&run)?;
        let chosen = select(&normed, &input.index).doing("selecting positions")?;
        let gradient = loss(&chosen.detach())?;
        send_back(&chosen, &gradient).doing("computing gradients")?;
        let mut gradient = gradient_of(&top).doing("computing gradients")?;
        drop((chosen, normed, top));
        for layer in (0..n_layers).rev() {
            let Some(below) = inputs.pop() else { break };
            // Below the first layer only an embedding can learn, and an adapter has none.
            let goes_on = layer > 0 || adapter.is_none();
            let below = if goes_on {
                leaf(&below).doing("computing gradients")?
            } else {
                below
            };
            let output = model.layer_train(layer, &below, &context, adapter).map_err(&run)?;
            if !output.requires_grad() {
                break;
            }
            send_back(&output, &gradient).doing("computing gradients")?;
            if goes_on {
                gradient = gradient_of(&below).doing("computing gradients")?;
            }
        }
        if adapter.is_none() {
            let embedded = model.embed_train(tokens).map_err(&run)?;
            send_back(&embedded, &gradient).doing("computing gradients")?;
        }
        Ok(())
    }
}

fn spec(rank: usize, alpha: f64, targets: &[String]) -> Result<LoraSpec, TrainError> {
    let mut chosen = Vec::new();
    for name in targets {
        let target = Target::from_module(name).ok_or_else(|| {
            let known: Vec<&str> = Target::ALL.iter().map(|t| t.module()).collect();
            TrainError::settings(format!(
                "training.method.targets names \"{}\"; known are {}",
                name.escape_default(),
                known.join(", ")
            ))
        })?;
        if !chosen.contains(&target) {
            chosen.push(target);
        }
    }
    chosen.sort_unstable();
    Ok(LoraSpec {
        rank,
        alpha,
        rank_stabilized: false,
        targets: chosen,
    })
}

fn select(hidden: &Tensor, index: &Tensor) -> Result<Tensor, TchError> {
    let width = hidden.size().last().copied().unwrap_or(0);
    hidden.f_reshape([-1, width])?.f_index_select(0, index)
}

/// Backpropagates `gradient` from `output`: the gradient of `Σ output · gradient` is exactly that.
fn send_back(output: &Tensor, gradient: &Tensor) -> Result<(), TchError> {
    let gradient = gradient.f_detach()?.f_to_kind(output.kind())?;
    output.f_mul(&gradient)?.f_sum(None::<Kind>)?.f_backward()
}
