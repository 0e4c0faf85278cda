//! Load balancers (Octavia v2).
