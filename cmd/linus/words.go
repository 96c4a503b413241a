package main

import "linus/internal/job"

// words are the command line's names for the actions that errors and remedies
// mention: those that all actions have.
var words job.Words
