// Package task runs the parts of a program that work side by side, and functions that are called again and again.
package task
