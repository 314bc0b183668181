//! Small helpers over tch: typed errors with a word on what was being done.

use tch::TchError;

use crate::engine::models::ModelError;

/// Result of tensor work.
pub(crate) type Tensors<T> = Result<T, ModelError>;

/// Adds what was being done to an error of the tensor library.
pub(crate) trait Doing<T> {
    fn doing(self, what: &'static str) -> Tensors<T>;
}

impl<T> Doing<T> for Result<T, TchError> {
    fn doing(self, what: &'static str) -> Tensors<T> {
        self.map_err(|source| ModelError::Tensor {
            doing: what,
            source: Box::new(source),
        })
    }
}

/// A size as tch wants it. No tensor of this engine comes near the limit.
pub(crate) fn size(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
