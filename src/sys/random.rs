//! Randomness and fresh ids.

use crate::domain::RecordId;

/// A fresh record id, sortable by time.
pub fn record_id() -> RecordId {
    RecordId::from_uuid(uuid::Uuid::now_v7())
}

/// A fresh random token of 32 hex digits.
pub fn hex_token() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
