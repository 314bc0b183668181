//! The environment: every setting has a variable.

use std::collections::BTreeMap;

use super::nearest::declared;
use super::tree::{Node, Value};
use super::{Field, Kind, Source};

/// The variable of a setting: `REEF_PORT` for `reef.port`, `REEF_STORAGE_ON_FAILURE` for `storage.on-failure`, or a name
/// of its own.
pub(super) fn name_of(key: &str, field: &Field) -> String {
    if let Some(name) = field.env {
        return name.to_owned();
    }
    let key = key.strip_prefix("reef.").unwrap_or(key);
    format!("REEF_{}", key.replace(['.', '-'], "_").to_ascii_uppercase())
}

/// The variable of a declared setting.
pub fn variable(key: &str) -> Option<String> {
    let (key, field) = declared().find(|(known, _)| known == key)?;
    Some(name_of(&key, field))
}

/// The value of a setting's variable; an empty one counts as none.
pub(super) fn value<'a>(key: &str, field: &Field, env: &'a BTreeMap<String, String>) -> Option<(String, &'a str)> {
    let name = name_of(key, field);
    let text = env.get(&name).filter(|text| !text.is_empty())?;
    (!is_a_service_link(field, text)).then_some((name, text))
}

/// Kubernetes tells the containers beside a service called `reef` where that is, in `REEF_PORT`.
fn is_a_service_link(field: &Field, text: &str) -> bool {
    matches!(field.kind, Kind::Integer { .. })
        && ["tcp://", "udp://", "sctp://"]
            .iter()
            .any(|scheme| text.starts_with(scheme))
}

/// Lays the variables over what the file says.
pub(super) fn put(root: &mut Node, env: &BTreeMap<String, String>) {
    for (key, field) in declared() {
        if let Some((name, text)) = value(&key, field, env) {
            let node = Node::new(Value::Word(text.to_owned()), Source::Environment(name));
            // Where a file has something else than a table in the way, that is a fault by itself.
            let _in_the_way = root.put(&key, node);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_setting_has_a_variable_of_its_own() {
        let mut seen = BTreeSet::new();
        for (key, field) in declared() {
            let name = name_of(&key, field);
            let plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(name.bytes().all(plain), "{key}: {name}");
            assert!(seen.insert(name.clone()), "{key}: {name} is another setting's too");
        }
        // What a harness session tells its agent is no setting of the service.
        for told in [
            "REEF_SERVICE_URL",
            "REEF_SCENARIO",
            "REEF_HARNESS_ADAPTER",
            "REEF_HARNESS_DEST",
        ] {
            assert!(!seen.contains(told), "{told}");
        }
        for known in [
            "REEF_HOST",
            "REEF_PORT",
            "REEF_DIR",
            "REEF_RECIPE",
            "REEF_INFERENCE_TIMEOUT_S",
        ] {
            assert!(seen.contains(known), "{known}");
        }
    }
}
