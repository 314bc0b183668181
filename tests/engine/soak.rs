//! Memory over many answers. Runs where `REEF_SOAK_SECONDS` says for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use reef::engine::torch::TorchError;
use serde_json::json;

use crate::rig::{Rig, chat, runtime, scenario};

/// Resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
        .unwrap_or(0)
}

#[test]
fn memory_stays_flat_under_answers_cancellations_and_updates() {
    let Some(seconds) = std::env::var("REEF_SOAK_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
    else {
        return;
    };
    let total = Duration::from_secs(seconds);
    let rig = Arc::new(Rig::new(|options| options.max_batch = 8));
    runtime().block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..10_u64)
            .map(|client| {
                let (rig, stop) = (Arc::clone(&rig), Arc::clone(&stop));
                tokio::spawn(async move {
                    let mut n = 0;
                    while !stop.load(Ordering::Relaxed) {
                        n += 1;
                        let text = "some words to say ".repeat(usize::try_from((client * 7 + n) % 20).unwrap_or(1));
                        let body = chat(
                            &format!("{client} {n} {text}"),
                            &json!({"stream": n % 2 == 0, "seed": n, "n": 1 + n % 2}),
                        );
                        let name = scenario(&format!("s{}", (client + n) % 5));
                        let (mut stream, _slot) = rig.begin(&name, &body, None).await.unwrap();
                        let mut pieces = 0;
                        while let Some(piece) = stream.next().await {
                            piece.unwrap();
                            pieces += 1;
                            if n % 5 == 0 && pieces == 3 {
                                break;
                            }
                        }
                    }
                })
            })
            .collect();
        let dirs = [rig.adapter("a", 1), rig.adapter("b", 2)];
        let begin = Instant::now();
        let (mut n, mut settled) = (0, 0);
        while begin.elapsed() < total {
            tokio::time::sleep(Duration::from_millis(100)).await;
            n += 1;
            match rig
                .engine
                .handle()
                .load_adapter(&scenario(&format!("s{}", n % 5)), &dirs[n % 2])
                .await
            {
                Ok(_) | Err(TorchError::NoRoom { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            if settled == 0 && begin.elapsed() > total / 3 {
                settled = resident();
            }
        }
        let end = resident();
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.unwrap();
        }
        let status = rig.status();
        println!("after a third {settled} KiB, at the end {end} KiB; {status:?}");
        assert_eq!(status.failed, 0);
        assert!(end < settled + 64 * 1024, "{settled} KiB grew to {end} KiB");
    });
}
