"""The screen of `ettsweep watch`: a watcher polls a results folder, an application shows it."""
