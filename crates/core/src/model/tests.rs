//! Invariants of the model.
