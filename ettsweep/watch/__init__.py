"""The full-screen view of `ettsweep watch`: a watcher polls a results folder, an application shows it."""
