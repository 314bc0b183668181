//! What a trainer that writes out the head's gradient needs: logits without a trace, and the way back through the head.

use tch::{Kind, TchError, Tensor, no_grad};

use super::forward::Model;
use super::tensor::{Doing, Tensors};

impl Model {
    /// Lets every weight take gradients in place, without the copy of [`Model::trainable`]: for a model that nothing
    /// else holds.
    pub(crate) fn set_trainable(&self) -> Tensors<()> {
        for (_, parameter) in self.parameters() {
            let _same = parameter.f_set_requires_grad(true).doing("marking parameters")?;
        }
        Ok(())
    }

    /// Logits of normalised hidden states.
    pub(crate) fn head_logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        self.weights.head.apply(hidden)
    }

    /// The gradient of the head's input from that of its output; the head's own gradient is added to its weight where
    /// it trains.
    pub(crate) fn head_backward(&self, hidden: &Tensor, gradient: &Tensor) -> Result<Tensor, TchError> {
        let weight = &self.weights.head.weight;
        let gradient = gradient.f_to_kind(weight.kind())?;
        if weight.requires_grad() {
            let own = no_grad(|| gradient.f_transpose(0, 1)?.f_matmul(&hidden.f_detach()?))?;
            // Autograd adds to a gradient that is there already, as a tied embedding's is.
            tch::with_grad(|| weight.f_mul(&own)?.f_sum(None::<Kind>)?.f_backward())?;
        }
        no_grad(|| gradient.f_matmul(weight))
    }
}
