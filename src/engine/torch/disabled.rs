//! The embedded engine's door in a build without it: starting says so, and nothing else can be reached.

use std::convert::Infallible;
use std::path::Path;

use super::{Dtype, TorchError, TorchOptions, TorchStatus};
use crate::domain::{RuntimeLoadId, ScenarioName};
use crate::engine::models::{BenchPlan, BenchReport, ModelError};
use crate::engine::{BoxFuture, Engine, EngineError, EngineReply, EngineRequest, ModelCard};

/// Always [`ModelError::NotCompiled`].
pub fn bench_model(_dir: &Path, _dtype: Dtype, _threads: u16, _plan: &BenchPlan) -> Result<BenchReport, ModelError> {
    Err(ModelError::NotCompiled)
}

/// Never exists in this build.
#[derive(Debug, Clone)]
pub struct TorchEngine {
    handle: TorchHandle,
}

/// Never exists in this build.
#[derive(Debug, Clone)]
pub struct TorchHandle {
    never: Infallible,
}

impl TorchEngine {
    /// Always [`TorchError::NotCompiled`].
    pub fn start(_options: TorchOptions) -> Result<Self, TorchError> {
        Err(TorchError::NotCompiled)
    }

    /// The handle.
    pub fn handle(&self) -> &TorchHandle {
        &self.handle
    }
}

impl Engine for TorchEngine {
    fn call(&self, _request: EngineRequest) -> BoxFuture<'_, Result<EngineReply, EngineError>> {
        match self.handle.never {}
    }

    fn models(&self) -> BoxFuture<'_, Result<Vec<ModelCard>, EngineError>> {
        match self.handle.never {}
    }

    fn kind(&self) -> &'static str {
        match self.handle.never {}
    }
}

impl TorchHandle {
    /// See the build with the feature `torch`.
    #[expect(clippy::unused_async, reason = "the same door as the real one")]
    pub async fn load_adapter(&self, _scenario: &ScenarioName, _dir: &Path) -> Result<RuntimeLoadId, TorchError> {
        match self.never {}
    }

    /// See the build with the feature `torch`.
    #[expect(clippy::unused_async, reason = "the same door as the real one")]
    pub async fn load_full_weights(&self, _scenario: &ScenarioName, _dir: &Path) -> Result<RuntimeLoadId, TorchError> {
        match self.never {}
    }

    /// See the build with the feature `torch`.
    #[expect(clippy::unused_async, reason = "the same door as the real one")]
    pub async fn unload(&self, _scenario: &ScenarioName) -> Result<RuntimeLoadId, TorchError> {
        match self.never {}
    }

    /// See the build with the feature `torch`.
    pub fn current_load(&self, _scenario: &ScenarioName) -> Option<RuntimeLoadId> {
        match self.never {}
    }

    /// See the build with the feature `torch`.
    pub fn options(&self) -> &TorchOptions {
        match self.never {}
    }

    /// See the build with the feature `torch`.
    pub fn max_context(&self) -> usize {
        match self.never {}
    }

    /// See the build with the feature `torch`.
    pub fn status(&self) -> TorchStatus {
        match self.never {}
    }
}
