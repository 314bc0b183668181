//! How many requests are with the engine, and how each of them ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::error::ApiError;

/// Counts requests from admission to the last byte of their response.
#[derive(Debug)]
pub(super) struct Admission {
    active: AtomicUsize,
    limit: usize,
    open: AtomicBool,
}

/// One admitted request; dropping it makes room for another.
#[derive(Debug)]
pub(super) struct Permit(Arc<Admission>);

impl Admission {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            active: AtomicUsize::new(0),
            limit,
            open: AtomicBool::new(true),
        })
    }

    /// Admits a request, unless the service is full or stopping.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Permit, ApiError> {
        if !self.is_open() {
            return Err(ApiError::unavailable(
                "stopping",
                "the service is stopping; try again soon",
            ));
        }
        let before = self.active.fetch_add(1, Ordering::Relaxed);
        let permit = Permit(Arc::clone(self));
        if before >= self.limit {
            return Err(ApiError::unavailable(
                "overloaded",
                format!(
                    "{} requests are in flight, the most this service takes; try again soon",
                    self.limit
                ),
            ));
        }
        Ok(permit)
    }

    pub(super) fn close(&self) {
        self.open.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_given_back_also_by_those_refused() {
        let admission = Admission::new(1);
        let first = admission.enter().unwrap();
        assert_eq!(admission.enter().unwrap_err().code, "overloaded");
        assert_eq!(admission.active(), 1);
        drop(first);
        let _second = admission.enter().unwrap();
        admission.close();
        assert_eq!(admission.enter().unwrap_err().code, "stopping");
    }
}
