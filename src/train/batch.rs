//! What a step learns from: rows of tokens exact from the engine that sampled them.

use serde::{Deserialize, Serialize};

use super::TrainError;
use crate::domain::{BatchId, LoadSpan, RecordId, SCORE_RULE, ScenarioName, is_score};

/// A sealed batch, ready to train.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainBatch {
    /// The batch's id.
    pub id: BatchId,
    /// The scenario that learns.
    pub scenario: ScenarioName,
    /// The rows, in the order of the batch's manifest.
    pub rows: Vec<TrainRow>,
}

/// One rollout: a prompt and what the policy (and its environment) wrote after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainRow {
    /// The records it was made from.
    pub sources: Vec<RecordId>,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Token ids of the response, observations between turns included.
    pub response: Vec<u32>,
    /// Which response tokens are trained.
    pub loss_mask: Vec<bool>,
    /// Which response tokens are actions of the policy; the loss mask if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_mask: Option<Vec<bool>>,
    /// Log-probability of each response token under the engine that sampled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_probs: Option<Vec<f32>>,
    /// The temperature those log-probabilities refer to.
    #[serde(default = "one")]
    pub temperature: f32,
    /// The grade; absent is not zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// The comparison set it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Which loads sampled which response tokens.
    #[serde(default)]
    pub spans: Vec<LoadSpan>,
    /// The response was cut off by its length limit.
    #[serde(default)]
    pub truncated: bool,
}

fn one() -> f32 {
    1.0
}

impl TrainRow {
    /// The action mask in force.
    pub fn actions(&self) -> &[bool] {
        self.action_mask.as_deref().unwrap_or(&self.loss_mask)
    }

    /// Number of trained tokens.
    pub fn trained_tokens(&self) -> usize {
        self.loss_mask.iter().filter(|m| **m).count()
    }

    /// Prompt and response together.
    pub fn len(&self) -> usize {
        self.prompt.len() + self.response.len()
    }

    /// A row always has tokens once checked.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn fault(&self) -> Option<String> {
        let n = self.response.len();
        if n == 0 {
            return Some("the response has no tokens".into());
        }
        if self.prompt.is_empty() {
            return Some("there is no prompt before the response".into());
        }
        if self.loss_mask.len() != n {
            return Some(format!(
                "loss_mask has {} entries for {n} response tokens",
                self.loss_mask.len()
            ));
        }
        if self.trained_tokens() == 0 {
            return Some("loss_mask selects no token".into());
        }
        if let Some(log_probs) = &self.log_probs {
            if log_probs.len() != n {
                return Some(format!(
                    "log_probs has {} entries for {n} response tokens",
                    log_probs.len()
                ));
            }
            if let Some(t) = log_probs.iter().position(|l| !l.is_finite()) {
                return Some(format!("log_probs[{t}] is not finite"));
            }
        }
        if let Some(actions) = &self.action_mask {
            if actions.len() != n {
                return Some(format!(
                    "action_mask has {} entries for {n} response tokens",
                    actions.len()
                ));
            }
            if let Some(t) = (0..n).find(|t| self.loss_mask[*t] && !actions[*t]) {
                return Some(format!("token {t} is trained but is not an action"));
            }
        }
        if self.reward.is_some_and(|r| !is_score(r)) {
            return Some(format!("the reward cannot be used: {SCORE_RULE}"));
        }
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Some("the temperature is not a number of 0 or more".into());
        }
        None
    }
}

impl TrainBatch {
    /// Refuses a batch that breaks a rule of training values, naming the first row that does.
    pub fn check(&self) -> Result<(), TrainError> {
        for (i, row) in self.rows.iter().enumerate() {
            if let Some(fault) = row.fault() {
                return Err(self.row_error(i, fault));
            }
        }
        let known = self.rows.iter().filter(|r| r.log_probs.is_some()).count();
        if known != 0 && known != self.rows.len() {
            let i = self.rows.iter().position(|r| r.log_probs.is_none()).unwrap_or(0);
            return Err(self.row_error(i, "it has no log_probs while other rows of the batch do".into()));
        }
        Ok(())
    }

    /// An error about row `i`.
    pub(crate) fn row_error(&self, i: usize, fault: String) -> TrainError {
        TrainError::Row {
            row: i,
            record: self
                .rows
                .get(i)
                .and_then(|r| r.sources.first())
                .map_or_else(|| "unknown".into(), |r| r.as_str().to_owned()),
            fault,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn row(prompt: &[u32], response: &[u32], reward: Option<f64>) -> TrainRow {
        TrainRow {
            sources: vec![RecordId::new("r1").unwrap()],
            prompt: prompt.to_vec(),
            response: response.to_vec(),
            loss_mask: vec![true; response.len()],
            action_mask: None,
            log_probs: Some(vec![-1.0; response.len()]),
            temperature: 1.0,
            reward,
            group: None,
            spans: Vec::new(),
            truncated: false,
        }
    }

    pub(crate) fn batch(rows: Vec<TrainRow>) -> TrainBatch {
        TrainBatch {
            id: BatchId::new("b1").unwrap(),
            scenario: ScenarioName::new("s").unwrap(),
            rows,
        }
    }

    #[test]
    fn every_rule_of_a_row_is_named() {
        let good = row(&[1], &[2, 3], Some(1.0));
        assert!(batch(vec![good.clone()]).check().is_ok());
        type Break = (&'static str, fn(&mut TrainRow));
        let breaks: [Break; 11] = [
            ("no tokens", |r| r.response.clear()),
            ("no prompt", |r| r.prompt.clear()),
            ("loss_mask has 1", |r| r.loss_mask = vec![true]),
            ("selects no token", |r| r.loss_mask = vec![false, false]),
            ("log_probs has 3", |r| r.log_probs = Some(vec![0.0; 3])),
            ("log_probs[1] is not finite", |r| {
                r.log_probs = Some(vec![0.0, f32::NAN]);
            }),
            ("action_mask has 1", |r| r.action_mask = Some(vec![true])),
            ("token 1 is trained but", |r| r.action_mask = Some(vec![true, false])),
            ("reward cannot be used", |r| r.reward = Some(f64::INFINITY)),
            ("reward cannot be used", |r| r.reward = Some(1e308)),
            ("temperature", |r| r.temperature = -1.0),
        ];
        for (want, broken) in breaks {
            let mut bad = good.clone();
            broken(&mut bad);
            let error = batch(vec![good.clone(), bad]).check().unwrap_err().to_string();
            assert!(error.contains(want) && error.contains("row 1"), "{error}");
        }
    }

    #[test]
    fn log_probs_are_there_for_all_rows_or_none() {
        let mut without = row(&[1], &[2], None);
        without.log_probs = None;
        assert!(batch(vec![without.clone(), without.clone()]).check().is_ok());
        let mixed = batch(vec![row(&[1], &[2], None), without]).check().unwrap_err();
        assert!(mixed.to_string().contains("row 1"), "{mixed}");
    }
}
