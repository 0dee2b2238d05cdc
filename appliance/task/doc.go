// Package task runs the parts of a program that work side by side.
package task
