//! The AWS SDK behind [`Transport`](crate::api::Transport): the only folder that names it.
