//! Load balancers of Octavia.
