//! Load balancers that carry traffic: what is wanted as plain data in, sockets out.
