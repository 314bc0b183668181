//! A key that opens the pages of one scenario in a browser, which sends no token. It allows reading these pages and
//! nothing else, and it ends.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::domain::ScenarioName;

/// How long a key opens pages.
const LASTS_S: i64 = 7 * 86_400;

/// The key of a scenario at an instant, under the digest of a token: `<last second>-<hex>`.
pub(super) fn make(digest: &[u8; 32], scenario: &ScenarioName, now_us: i64) -> String {
    let until = now_us.div_euclid(1_000_000) + LASTS_S;
    format!("{until}-{}", hex::encode(mac(digest, scenario, until)))
}

/// Whether a key opens a scenario at an instant.
pub(super) fn opens(digests: &[[u8; 32]], scenario: &ScenarioName, key: &str, now_us: i64) -> bool {
    let Some((until, given)) = key.split_once('-') else {
        return false;
    };
    let (Ok(until), Ok(given)) = (until.parse::<i64>(), hex::decode(given)) else {
        return false;
    };
    // Every digest is compared, so that time tells nothing of which one was near.
    let known = digests.iter().fold(subtle::Choice::from(0), |known, digest| {
        known | mac(digest, scenario, until).as_slice().ct_eq(&given)
    });
    bool::from(known) && until >= now_us.div_euclid(1_000_000)
}

fn mac(digest: &[u8; 32], scenario: &ScenarioName, until: i64) -> [u8; 32] {
    hmac(digest, format!("reef-pages\n{scenario}\n{until}").as_bytes())
}

/// HMAC with SHA-256 (RFC 2104), for keys of less than one block.
fn hmac(key: &[u8; 32], message: &[u8]) -> [u8; 32] {
    let padded = |with: u8| {
        let mut block = [with; 64];
        for (byte, key) in block.iter_mut().zip(key) {
            *byte ^= key;
        }
        block
    };
    let inner = Sha256::new()
        .chain_update(padded(0x36))
        .chain_update(message)
        .finalize();
    Sha256::new()
        .chain_update(padded(0x5c))
        .chain_update(inner)
        .finalize()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_that_of_another_implementation() {
        // printf 'Hi There' | openssl dgst -sha256 -mac hmac -macopt hexkey:0b0b…0b (32 bytes)
        let code = hmac(&[0x0b; 32], b"Hi There");
        assert_eq!(
            hex::encode(code),
            "198a607eb44bfbc69903a0f1cf2bbdc5ba0aa3f3d9ae3c1c7a3b1696a0b68cf7"
        );
    }

    #[test]
    fn a_key_opens_its_own_scenario_until_it_ends() {
        let (a, b) = (ScenarioName::new("a").unwrap(), ScenarioName::new("b").unwrap());
        let digests = [[1; 32], [2; 32]];
        let key = make(&digests[1], &a, 1_000_000);
        assert!(opens(&digests, &a, &key, 2_000_000));
        assert!(opens(&digests, &a, &key, LASTS_S * 1_000_000));
        assert!(!opens(&digests, &a, &key, (LASTS_S + 2) * 1_000_000));
        assert!(!opens(&digests, &b, &key, 2_000_000));
        assert!(!opens(&digests[..1], &a, &key, 2_000_000));
        let later = key.replacen(key.split('-').next().unwrap(), "99999999999", 1);
        for bad in [later.as_str(), "", "-", "x", "1-zz", &key[..key.len() - 2]] {
            assert!(!opens(&digests, &a, bad, 2_000_000), "{bad}");
        }
    }
}
