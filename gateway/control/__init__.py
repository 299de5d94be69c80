"""What steers a turn: behaviour trees and the conditions that they and rules are written in."""
