//! Law: the HTTP service: routes, authentication, the streaming tee, error bodies in the caller's dialect. Owns no
//! durable state and no domain rule. Door: the service's `run`. Fails a request, never the process.
