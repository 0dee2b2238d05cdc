// Package box has the verbs of one box: serve, doctor, down, dashboard, and announce with its words.
package box
