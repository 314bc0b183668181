//! Traces over OTLP/HTTP, as JSON, sent by a thread of their own in batches. A collector that is away costs its traces,
//! never a request.

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Subscriber;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use crate::sys::net::{Cause, Proxies};
use crate::sys::task;

/// The target of spans that make up a trace: `tracing::info_span!(target: TRACES, …)`.
pub const TRACES: &str = "reef_trace";

/// Longest wait for the collector, for one batch and at the end.
const PATIENCE: Duration = Duration::from_secs(3);

/// Sends what is left of the traces when it goes.
#[derive(Debug, Default)]
pub struct Tracing(Option<SdkTracerProvider>);

impl Drop for Tracing {
    fn drop(&mut self) {
        if let Some(provider) = self.0.take() {
            // A collector that is away loses these traces; the process ends all the same.
            let _lost = provider.shutdown_with_timeout(PATIENCE);
        }
    }
}

/// A layer that sends Reef's own spans to the collector at `endpoint`.
pub(super) fn start<S>(endpoint: &str, proxies: &Proxies) -> Result<(Box<dyn Layer<S> + Send + Sync>, Tracing), String>
where
    S: Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
{
    // Fails only if somebody else installed one first, which serves as well.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let fault = |error: String| format!("no traces go to {}: {error}", without_credentials(endpoint));
    let builder = reqwest::blocking::Client::builder()
        .timeout(PATIENCE)
        .proxy(proxies.for_client());
    // A thread of its own, because a blocking client must not be made within asynchronous work.
    let client = task::thread("reef-traces", move || builder.build())
        .map_err(|error| fault(error.to_string()))?
        .join()
        .map_err(|error| fault(error.to_string()))?
        .map_err(|error| fault(Cause::of(&error).to_string()))?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(traces_url(endpoint))
        .with_protocol(Protocol::HttpJson)
        .with_timeout(PATIENCE)
        .build()
        .map_err(|error| fault(error.to_string()))?;
    let resource = Resource::builder_empty()
        .with_service_name("reef")
        .with_attribute(opentelemetry::KeyValue::new(
            "service.version",
            env!("CARGO_PKG_VERSION"),
        ))
        .build();
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .build();
    let layer = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("reef"))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        // Spans of the libraries below, and of the exporter itself, would drown them.
        .with_filter(Targets::new().with_target(TRACES, LevelFilter::INFO))
        .boxed();
    Ok((layer, Tracing(Some(provider))))
}

/// The collector's address as people write it, with the path of the standard.
fn traces_url(endpoint: &str) -> String {
    let base = endpoint.trim_end_matches('/');
    let has_path = base.split_once("://").is_some_and(|(_, rest)| rest.contains('/'));
    if has_path {
        base.to_owned()
    } else {
        format!("{base}/v1/traces")
    }
}

/// The collector's address without user, password and query.
fn without_credentials(endpoint: &str) -> &str {
    let bare = endpoint.split(['?', '#']).next().unwrap_or_default();
    bare.rsplit('@').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::traces_url;

    #[test]
    fn a_bare_collector_gets_the_standard_path() {
        assert_eq!(traces_url("http://127.0.0.1:4318"), "http://127.0.0.1:4318/v1/traces");
        assert_eq!(traces_url("http://127.0.0.1:4318/"), "http://127.0.0.1:4318/v1/traces");
        assert_eq!(
            traces_url("https://o.example/otlp/v1/traces"),
            "https://o.example/otlp/v1/traces"
        );
    }
}
