// Command man makes manual pages of the Markdown in docs/: man DOCS OUT DATE.
package main
