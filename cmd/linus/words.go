package main

import "linus/internal/job"

// words are the command line's names for the actions that errors and remedies mention: the default
// ones.
var words job.Words
