//! Version discovery documents.
