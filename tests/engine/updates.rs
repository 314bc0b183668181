//! New weights under traffic.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::StreamExt;
use reef::engine::EngineError;
use reef::engine::models::{synthetic_config, write_synthetic};
use reef::engine::torch::{OnSwap, TorchError};
use serde_json::json;

use crate::rig::{Rig, assert_close, chat, read, recomputed, runtime, scenario};

#[test]
fn an_adapter_serves_its_scenario_only_and_the_record_says_so() {
    let rig = Rig::new(|_| {});
    runtime().block_on(async {
        let (s, t) = (scenario("s"), scenario("t"));
        let body = chat("who is it", &json!({"temperature": 0.0, "ignore_eos": true}));
        let before = rig.answer_in(&s, &body, None).await.unwrap().capture;
        let dir = rig.adapter("one", 1);
        let load = rig.engine.handle().load_adapter(&s, &dir).await.unwrap();
        assert_eq!(before.spans[0].runtime_load_id.lag_behind(&load), Some(1));
        assert_eq!(rig.engine.handle().current_load(&s), Some(load.clone()));
        let after = rig.answer_in(&s, &body, None).await.unwrap().capture;
        assert_ne!(
            before.token_ids, after.token_ids,
            "nothing of the old load's cache is reused"
        );
        assert_eq!(after.spans[0].runtime_load_id, load);
        assert_close(&after.logprobs, &recomputed(&rig.model_dir, Some(&dir), &after), 1e-4);
        let other = rig.answer_in(&t, &body, None).await.unwrap().capture;
        assert_eq!(other.token_ids, before.token_ids);
        let back = rig.engine.handle().unload(&s).await.unwrap();
        assert_eq!(load.lag_behind(&back), Some(1));
        assert_eq!(
            rig.answer_in(&s, &body, None).await.unwrap().capture.token_ids,
            before.token_ids
        );
    });
}

#[test]
fn adapters_of_one_batch_do_not_mix() {
    let rig = Arc::new(Rig::new(|_| {}));
    runtime().block_on(async {
        let body = chat("who is it", &json!({"temperature": 0.0, "ignore_eos": true}));
        let mut dirs = Vec::new();
        for n in 0..3_u64 {
            let dir = rig.adapter(&format!("a{n}"), n + 1);
            rig.engine
                .handle()
                .load_adapter(&scenario(&format!("s{n}")), &dir)
                .await
                .unwrap();
            dirs.push(dir);
        }
        let bodies = (0..4).map(|n| (scenario(&format!("s{n}")), body.clone())).collect();
        let answers = crate::rig::all(&rig, bodies).await;
        for (n, answer) in answers.into_iter().enumerate() {
            let capture = answer.unwrap().capture;
            let dir = dirs.get(n).map(AsRef::as_ref);
            assert_close(&capture.logprobs, &recomputed(&rig.model_dir, dir, &capture), 1e-4);
        }
    });
}

/// Swaps while eight clients stream; gives how many answers ended well.
fn swap_under_traffic(
    on_swap: OnSwap,
    check: impl Fn(&reef::domain::TokenCapture) + Send + Sync + Copy + 'static,
) -> usize {
    let rig = Arc::new(Rig::new(|options| {
        options.max_batch = 8;
        options.on_swap = on_swap;
        options.max_loads = 3;
    }));
    runtime().block_on(async {
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..8)
            .map(|n| {
                let (rig, stop, done) = (Arc::clone(&rig), Arc::clone(&stop), Arc::clone(&done));
                tokio::spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        let body = chat(
                            &format!("client {n}"),
                            &json!({
                                "max_tokens": 60, "ignore_eos": true, "stream": true, "temperature": 1.0,
                            }),
                        );
                        let answer = rig.answer_in(&scenario("s"), &body, None).await.unwrap();
                        assert!(answer.body.ends_with("data: [DONE]\n\n"));
                        assert_eq!(answer.capture.token_ids.len(), 60);
                        check(&answer.capture);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let dirs = [rig.adapter("a", 1), rig.adapter("b", 2)];
        let mut swapped = 0;
        while swapped < 12 {
            match rig
                .engine
                .handle()
                .load_adapter(&scenario("s"), &dirs[swapped % 2])
                .await
            {
                Ok(_) => swapped += 1,
                // Everything old is still in use; the current load goes on serving.
                Err(TorchError::NoRoom { .. }) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
                Err(error) => panic!("{error}"),
            }
            assert!(rig.status().residency.resident <= 3);
            let seen = done.load(Ordering::Relaxed);
            rig.until("traffic goes on", |_| done.load(Ordering::Relaxed) > seen)
                .await;
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.await.unwrap();
        }
        rig.until("idle", |status| status.running == 0 && status.residency.draining == 0)
            .await;
        let status = rig.status();
        assert_eq!((status.failed, status.cancelled, status.swaps), (0, 0, 12));
        assert!(
            status.residency.draining == 0 && status.residency.resident <= 2,
            "{:?}",
            status.residency
        );
        done.load(Ordering::Relaxed)
    })
}

#[test]
fn updates_under_traffic_fail_nothing_and_each_answer_keeps_its_load() {
    let done = swap_under_traffic(OnSwap::Finish, |capture| assert_eq!(capture.spans.len(), 1));
    assert!(done >= 12, "{done}");
}

#[test]
fn answers_that_switch_say_which_token_came_from_which_load() {
    let done = swap_under_traffic(OnSwap::Switch, |capture| {
        let mut next = 0;
        for span in &capture.spans {
            assert!(span.start == next && span.end > span.start, "{:?}", capture.spans);
            next = span.end;
        }
        assert_eq!(next, capture.token_ids.len());
        for pair in capture.spans.windows(2) {
            let (a, b) = (&pair[0].runtime_load_id, &pair[1].runtime_load_id);
            assert!(a.lag_behind(b).is_some_and(|lag| lag > 0), "{a} {b}");
        }
    });
    assert!(done >= 12, "{done}");
}

#[test]
fn a_switch_in_mid_answer_shows_as_two_spans() {
    let rig = Rig::new(|options| options.on_swap = OnSwap::Switch);
    runtime().block_on(async {
        let s = scenario("s");
        let dir = rig.adapter("a", 1);
        let body = chat("on", &json!({"max_tokens": 400, "ignore_eos": true, "stream": true}));
        let (mut stream, slot) = rig.begin(&s, &body, None).await.unwrap();
        stream.next().await.unwrap().unwrap();
        let load = rig.engine.handle().load_adapter(&s, &dir).await.unwrap();
        read(stream).await.unwrap();
        let capture = slot.get().unwrap();
        // On a fast machine the answer may have ended before the swap; then there is nothing to switch.
        if capture.spans.len() == 2 {
            assert_eq!(capture.spans[1].runtime_load_id, load);
            assert_eq!(capture.spans[1].end, capture.token_ids.len());
        } else {
            assert_eq!(capture.spans.len(), 1);
        }
        // What two loads computed together is reused by neither.
        let again = rig
            .answer_in(&s, &chat("on", &json!({"temperature": 0.0})), None)
            .await
            .unwrap();
        assert_close(
            &again.capture.logprobs,
            &recomputed(&rig.model_dir, Some(&dir), &again.capture),
            1e-4,
        );
    });
}

#[test]
fn weights_that_fail_their_probe_change_nothing() {
    let rig = Rig::new(|_| {});
    runtime().block_on(async {
        let s = scenario("s");
        let good = rig
            .engine
            .handle()
            .load_adapter(&s, &rig.adapter("good", 1))
            .await
            .unwrap();
        let broken = rig.adapter_with("broken", 2, f64::NAN);
        let error = rig.engine.handle().load_adapter(&s, &broken).await.unwrap_err();
        assert!(matches!(error, TorchError::Probe { .. }), "{error}");
        assert!(
            rig.engine
                .handle()
                .load_adapter(&s, Path::new("/nonexistent"))
                .await
                .is_err()
        );
        assert_eq!(rig.engine.handle().current_load(&s), Some(good.clone()));
        assert_eq!(rig.status().residency.resident, 1);
        let capture = rig.answer_in(&s, &chat("x", &json!({})), None).await.unwrap().capture;
        assert_eq!(capture.spans[0].runtime_load_id, good);
    });
}

#[test]
fn a_request_gets_the_load_frozen_for_it_or_is_told_that_it_is_gone() {
    let rig = Rig::new(|_| {});
    runtime().block_on(async {
        let s = scenario("s");
        let body = chat("x", &json!({}));
        let handle = rig.engine.handle();
        let first = handle.load_adapter(&s, &rig.adapter("a", 1)).await.unwrap();
        handle.load_adapter(&s, &rig.adapter("b", 2)).await.unwrap();
        let capture = rig.answer_in(&s, &body, Some(first.clone())).await.unwrap().capture;
        assert_eq!(capture.spans[0].runtime_load_id, first);
        handle.load_adapter(&s, &rig.adapter("c", 3)).await.unwrap();
        let gone = rig.answer_in(&s, &body, Some(first)).await.unwrap_err();
        assert!(
            matches!(gone, EngineError::Refused { status, .. } if status.as_u16() == 409),
            "{gone}"
        );
    });
}

#[test]
fn whole_models_swap_too() {
    let rig = Rig::new(|_| {});
    runtime().block_on(async {
        let (s, t) = (scenario("s"), scenario("t"));
        let other = rig.model_dir.with_file_name("other");
        write_synthetic(&other, &synthetic_config(), 99).unwrap();
        let body = chat("who is it", &json!({"temperature": 0.0, "ignore_eos": true}));
        let before = rig.answer_in(&s, &body, None).await.unwrap().capture;
        rig.engine.handle().load_full_weights(&s, &other).await.unwrap();
        let bodies = vec![(s.clone(), body.clone()), (t.clone(), body.clone())];
        let rig = Arc::new(rig);
        let answers = crate::rig::all(&rig, bodies).await;
        let [new, old] = answers.try_into().unwrap();
        let (new, old) = (new.unwrap().capture, old.unwrap().capture);
        assert_close(&new.logprobs, &recomputed(&other, None, &new), 1e-4);
        assert_eq!(
            old.token_ids, before.token_ids,
            "the other scenario stays with the base"
        );
        let mut wider = synthetic_config();
        wider["num_hidden_layers"] = json!(2);
        let wrong = rig.model_dir.with_file_name("wrong");
        write_synthetic(&wrong, &wider, 1).unwrap();
        let error = rig.engine.handle().load_full_weights(&s, &wrong).await.unwrap_err();
        assert!(
            matches!(
                error,
                TorchError::OtherShape {
                    field: "number of layers",
                    ..
                }
            ),
            "{error}"
        );
    });
}

/// Times of swaps under eight streams, printed for `scripts/bench/embedded.sh`. Runs where `REEF_BENCH_MODEL` names a
/// model folder.
#[test]
fn bench_swap() {
    let Some(model) = std::env::var_os("REEF_BENCH_MODEL") else {
        return;
    };
    let mut options = reef::engine::torch::TorchOptions::new(model, "bench");
    options.max_context = Some(1024);
    options.threads = std::thread::available_parallelism().map_or(1, usize::from);
    let rig = Arc::new(Rig::on(options));
    runtime().block_on(async {
        let dirs = [rig.wide_adapter("a", 1), rig.wide_adapter("b", 2)];
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..8)
            .map(|n| {
                let (rig, stop) = (Arc::clone(&rig), Arc::clone(&stop));
                tokio::spawn(async move {
                    let mut gaps = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let body = chat(&format!("client {n}"), &json!({"max_tokens": 200, "ignore_eos": true, "stream": true}));
                        let (mut stream, _slot) = rig.begin(&scenario("s"), &body, None).await.unwrap();
                        let mut last = std::time::Instant::now();
                        while let Some(piece) = stream.next().await {
                            piece.unwrap();
                            gaps.push(last.elapsed().as_secs_f64() * 1e3);
                            last = std::time::Instant::now();
                        }
                    }
                    gaps
                })
            })
            .collect();
        let (mut swaps, mut swapped) = (Vec::new(), 0);
        while swapped < 40 {
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            let begin = std::time::Instant::now();
            match rig.engine.handle().load_adapter(&scenario("s"), &dirs[swapped % 2]).await {
                Ok(_) => {
                    swaps.push(begin.elapsed().as_secs_f64() * 1e3);
                    swapped += 1;
                }
                Err(TorchError::NoRoom { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
        let mut gaps = Vec::new();
        for client in clients {
            gaps.extend(client.await.unwrap());
        }
        let quantile = |values: &mut Vec<f64>, q: f64| {
            values.sort_by(f64::total_cmp);
            values[((values.len() - 1) as f64 * q) as usize]
        };
        let handle = rig.engine.handle();
        println!(
            "{}",
            json!({
                "measurement": "adapter update under eight streams", "updates": swaps.len(),
                "load_probe_swap_ms_p50": quantile(&mut swaps, 0.5), "load_probe_swap_ms_p99": quantile(&mut swaps, 0.99),
                "swap_alone_us_max": handle.status().longest_swap_us,
                "gap_ms_p50": quantile(&mut gaps, 0.5), "gap_ms_p99": quantile(&mut gaps, 0.99),
                "failed": handle.status().failed,
            })
        );
        assert_eq!(handle.status().failed, 0);
    });
}
