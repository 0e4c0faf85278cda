//! The HTTP side: routes, tokens, pages, bodies of errors, journal and faults.
